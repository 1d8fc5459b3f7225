"""Workers on a Ray cluster: ``placement`` decides, ``cluster`` looks, ``actors`` run on nodes, ``backend`` drives."""
