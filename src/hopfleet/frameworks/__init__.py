"""One adapter per deep-learning framework, the only place that imports it. ``base`` says what an adapter promises."""
