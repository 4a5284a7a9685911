package direct

import (
	"errors"
	"io/fs"
	"os"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// noIPv6 is why a node cannot direct IPv6.
func noIPv6() error {
	return &Problem{NoIPv6, errors.New("the tunnels cannot have IPv6: load the kernel module ipv6, and set the sysctl " +
		"net.ipv6.conf.default.disable_ipv6 to 0")}
}

// conf6 has the kernel's parameters of IPv6.
const conf6 = "/proc/sys/net/ipv6/conf/"

// exists reports whether the kernel has a family. Its table exists whenever the tunnels do, whatever is directed: all
// that it does not accept ends there.
func exists(family int) bool {
	_, err := os.Stat(conf6)
	return family == nftwatch.IP || err == nil
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
func disableIPv6(device string) string { return conf6 + device + "/disable_ipv6" }
