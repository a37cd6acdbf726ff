"""The demo: a ReLUFormer learns to say dates, places, amounts and lists in German, in minutes, offline."""
