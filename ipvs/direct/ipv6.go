package direct

import (
	"errors"
	"io/fs"
	"os"
)

// noIPv6 is why a node cannot direct IPv6.
func noIPv6() error {
	return &Problem{NoIPv6, errors.New("the tunnels cannot have IPv6: load the kernel module ipv6, and set the sysctl " +
		"net.ipv6.conf.default.disable_ipv6 to 0")}
}

// hasIPv6 reports whether all tunnels have IPv6, or can.
func hasIPv6() bool {
	for _, name := range devices {
		if !enablesIPv6(name) && !enablesIPv6("default") {
			return false
		}
	}
	return true
}

// enablesIPv6 reports whether a device has IPv6, or this process may enable it: /proc/sys is read-only in a container
// without privileges. A new device has what "default" has. The kernel has no IPv6 if that is missing.
func enablesIPv6(device string) bool {
	path := disableIPv6(device)
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil && string(value) == "0\n" {
		return true
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return file.Close() == nil
}

// disableIPv6 is the path of a parameter of a device that only a write sets.
func disableIPv6(device string) string { return "/proc/sys/net/ipv6/conf/" + device + "/disable_ipv6" }
