"""Fitting of the cost model to measured rows. Needs numpy and scikit-learn."""
