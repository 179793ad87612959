"""Adapters for frameworks, each a module of its own that needs the framework it is named after."""
