"""One module or folder for each backend; `polykern.registry` imports them on first use."""
