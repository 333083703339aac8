"""Prediction: traces, path models, the simulator and placement."""
