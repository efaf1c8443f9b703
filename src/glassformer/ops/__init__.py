"""Pure tensor functions: no modules, no parameters, no state."""
