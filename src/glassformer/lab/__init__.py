"""The claims of the field as runnable experiments. Empty until it is built."""
