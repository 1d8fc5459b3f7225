"""Strategies: ways to train one trial on several devices, or on one that is smaller than the model.

One module each, behind the interface of ``strategy.py``. Modules of strategies are imported when they are needed, since
some of them take seconds to import.
"""
