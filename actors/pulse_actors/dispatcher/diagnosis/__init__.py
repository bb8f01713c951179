"""Why a job does not run (`jobs why`)."""
