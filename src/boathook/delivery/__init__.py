"""Delivers events: claims due deliveries, runs their handlers or sends their requests, and records the outcome."""
