"""The Helm chart, from the manifests of `deploy/kubernetes`: its values, and templates of its objects."""
