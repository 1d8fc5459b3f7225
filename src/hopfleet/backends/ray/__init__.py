"""Workers on a Ray cluster. ``backend`` drives a run; each other part can be read alone.

Decisions: ``placement`` (which workers and partitions go to which node), ``pending_workers`` (workers to start),
``liveness`` (when a worker or node is lost), ``version_locations`` (which node holds which version).
Effects: ``cluster`` inspects nodes, ``discovery`` finds the nodes to use, ``demand`` asks an autoscaler for more,
``node_agents`` are the nodes in use, ``members`` the workers, ``calls`` delivers answers, ``versions`` is the driver's
view of saved models.
On the nodes: ``actors``.
"""
