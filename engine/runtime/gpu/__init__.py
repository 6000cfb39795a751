"""The executor for devices that compute while the host plans."""
