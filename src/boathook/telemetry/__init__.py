"""What boathook tells about itself: `emit` counts, `metrics` names, `exporters` shows, `log` writes lines."""
