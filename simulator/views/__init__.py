"""A Trace in; a Figure, text or JSON out. Nothing here simulates, and every view works on every kind of trace."""
