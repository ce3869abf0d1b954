"""The app by topic: each module has the methods of one topic, and declares those that every interface offers."""
