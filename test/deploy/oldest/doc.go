// Package oldest checks deploy/ against the API of the oldest Kubernetes that the chart accepts. It is a module of its
// own because its libraries are of that version.
package oldest
