"""dsec: sandboxes for agentic training and evaluation."""
