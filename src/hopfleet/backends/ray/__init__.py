"""Workers on a Ray cluster. ``backend`` drives a run; each other part can be read alone.

What decides: ``placement`` (which workers and partitions go to which node), ``vacancies`` (workers to be started),
``silence`` (when somebody is lost), ``whereabouts`` (which node holds which version).
What acts: ``cluster`` looks at nodes, ``scout`` finds those to use, ``demand`` asks an autoscaler for more,
``stations`` are nodes in use, ``members`` are workers, ``calls`` brings answers, ``versions`` is the driver's view of
saved models.
What runs on the nodes: ``actors``.
"""
