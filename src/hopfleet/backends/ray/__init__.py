"""Workers on a Ray cluster. ``backend`` drives a run; each other part can be read alone.

Decisions: ``placement`` (which workers and partitions go to which node), ``pending_workers`` (workers to start),
``liveness`` (when a worker or node is lost), ``version_locations`` (which node holds which version).
Effects: ``lifecycle`` starts and loses workers and nodes, ``cluster`` inspects nodes, ``discovery`` finds the nodes to
use, ``demand`` asks an autoscaler for more, ``nodes`` and ``workers`` are the handles of those in use, ``calls``
delivers answers, ``versions`` is the driver's view of saved models.
On the nodes: ``node_agent`` and ``worker_actor``.
"""
