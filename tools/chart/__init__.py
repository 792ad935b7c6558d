"""A Helm chart from deploy/kubernetes: what Kustomize renders, with its components as values."""
