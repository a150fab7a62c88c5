"""For the process that tests fork from, imported first: a fifth of the time that torch's import takes is for garbage
collections, which find nothing."""

import gc

gc.disable()
