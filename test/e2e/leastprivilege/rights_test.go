package leastprivilege

import (
	"slices"

	"github.com/ironlb/ironlb/test/lab/manifest"
)

// runtimeDefaults are the capabilities of an unprivileged container that names none (containerd, CRI-O and Docker agree
// on these).
var runtimeDefaults = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

// without removes the right from a container's privileges.
func without(p *manifest.Privileges, r manifest.Right) {
	switch {
	case p.Container != r.Container:
	case r.Kind == manifest.Privileged:
		p.Privileged, p.Capabilities = false, runtimeDefaults
	case r.Kind == manifest.Capability:
		p.Capabilities = slices.DeleteFunc(slices.Clone(p.Capabilities), func(c string) bool { return c == r.Object })
	}
}
