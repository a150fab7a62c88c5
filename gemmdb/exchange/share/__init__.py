"""Tables at a URL: pushing them there with a manifest, and pulling them from there."""
