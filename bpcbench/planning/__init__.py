"""Planning: from a suite to cells and stages."""
