"""The dispatch key that fakes for a GPU have for autocast: of a backend that is no more."""

AUTOCAST_KEY = "AutocastIPU"
AUTOCAST_DEVICE = "ipu"
"""The device type whose switch (`torch.set_autocast_enabled`) turns the key on."""
