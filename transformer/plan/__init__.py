"""What a run will be, looked at before it costs anything."""
