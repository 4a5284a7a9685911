// Package oldest holds what deploy/ installs against the API of the oldest Kubernetes that the chart accepts. It is a module of its own: its
// libraries are those of that version.
package oldest
