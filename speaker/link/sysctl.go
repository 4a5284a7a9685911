package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl is a kernel parameter with its value.
type Sysctl struct {
	Key   string // dotted, as sysctl(8) has it
	Value string
}

// Change is a parameter that was changed.
type Change struct {
	Key, From, To string
}

// Wanted returns the parameters that a node needs (ipvs.md 1.3.5, 1.4).
func Wanted() ([]Sysctl, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	return wanted(unix.ByteSliceToString(uts.Release[:])), nil
}

func wanted(release string) []Sysctl {
	sysctls := []Sysctl{
		// The kernel answers ARP only for addresses of the interface that was asked, so never for a virtual one; and
		// asks in the name of one of the interface's own.
		{"net.ipv4.conf.all.arp_ignore", "1"},
		{"net.ipv4.conf.all.arp_announce", "2"},
		{"net.ipv4.ip_forward", "1"},
		// Connections through IPVS are seen by conntrack, which masquerades them.
		{"net.ipv4.vs.conntrack", "1"},
		// A connection or a client's affinity to a real server that is gone ends at once.
		{"net.ipv4.vs.expire_nodest_conn", "1"},
		{"net.ipv4.vs.expire_quiescent_template", "1"},
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 5 || major == 5 && minor < 9) {
		// Before Linux 5.9 reuse of a client's port costs one second.
		sysctls = append(sysctls, Sysctl{"net.ipv4.vs.conn_reuse_mode", "0"})
	}
	return sysctls
}

// SetSysctls sets the parameters that differ, in the network namespace of the calling thread, and returns what it
// changed. It goes on after an error; the errors are joined.
func SetSysctls(want []Sysctl) ([]Change, error) {
	var changes []Change
	var errs []error
	for _, s := range want {
		from, err := setSysctl(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case from != s.Value:
			changes = append(changes, Change{Key: s.Key, From: from, To: s.Value})
		}
	}
	return changes, errors.Join(errs...)
}

// setSysctl returns the value before.
func setSysctl(s Sysctl) (string, error) {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(s.Key, ".", "/"))
	before, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s%s: %w", s.Key, mend(s.Key, err), err)
	}
	from := strings.TrimSpace(string(before))
	if from == s.Value {
		return from, nil
	}
	if err := os.WriteFile(path, []byte(s.Value), 0o644); err != nil {
		return "", fmt.Errorf("set sysctl %s=%s%s: %w", s.Key, s.Value, mend(s.Key, err), err)
	}
	return from, nil
}

// mend says what the operator can do about the error.
func mend(key string, err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(key, "net.ipv4.vs."):
		return ` (module ip_vs missing: run "modprobe ip_vs" on the node)`
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		return " (run as root with /proc/sys writable, or set it on the node beforehand)"
	}
	return ""
}
