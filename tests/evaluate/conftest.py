import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test asks a hub
