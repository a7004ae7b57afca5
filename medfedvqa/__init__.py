"""Federated learning for visual question answering over medical images."""
