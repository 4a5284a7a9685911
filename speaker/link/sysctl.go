package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sysctl is a kernel parameter with its value.
type Sysctl struct {
	Key   string // as in sysctl(8): dots between the parts, a slash for a dot in an interface name
	Value string
	// AtLeast keeps a greater number, Stricter keeps one of its space-separated values.
	AtLeast  bool
	Stricter string
	// Relies skips the parameter if an earlier one in the list cannot be set.
	Relies bool
}

// Change is a parameter that was changed.
type Change struct {
	Key, From, To string
}

// Needs are the features of a node that determine its parameters.
type Needs struct {
	// IPVS is the data plane, not nftables.
	IPVS bool
	// IPv6 addresses are served.
	IPv6 bool
	// ServiceProxy: this node serves all Services, so no other program sizes the conntrack table.
	ServiceProxy bool
}

// Wanted returns the parameters that a node needs, in the order in which to set them. The result
// is valid until one of them is not met.
func Wanted(needs Needs) ([]Sysctl, error) {
	sysctls := []Sysctl{
		// The kernel answers ARP only for addresses of the receiving interface, so never for a virtual one; and it
		// sends requests with an address of the sending interface. Neighbor discovery does so by default. 2 answers
		// fewer hosts and 8 none, so these values stay; 3 answers for addresses of other interfaces, and every other
		// value for all (arp_ignore, net/ipv4/arp.c).
		{Key: "net.ipv4.conf.all.arp_ignore", Value: "1", Stricter: "2 8"},
		{Key: "net.ipv4.conf.all.arp_announce", Value: "2"},
		{Key: "net.ipv4.ip_forward", Value: "1"},
	}
	if needs.IPVS {
		var uts unix.Utsname
		if err := unix.Uname(&uts); err != nil {
			return nil, fmt.Errorf("read the kernel's release: %w", err)
		}
		sysctls = append(sysctls, ipvsSysctls(unix.ByteSliceToString(uts.Release[:]))...)
	}
	if needs.ServiceProxy {
		sysctls = append(sysctls, conntrackSysctls(runtime.NumCPU())...)
	}
	if needs.IPv6 {
		keep, err := keepRouterAdvertisements()
		if err != nil {
			return nil, err
		}
		sysctls = append(append(sysctls, keep...), Sysctl{Key: forwarding6, Value: "1", Relies: true})
	}
	return sysctls, nil
}

func ipvsSysctls(release string) []Sysctl {
	sysctls := []Sysctl{
		// Conntrack tracks the connections through IPVS, and masquerades them.
		{Key: "net.ipv4.vs.conntrack", Value: "1"},
		// Connections and client affinity to a removed real server end at once.
		{Key: "net.ipv4.vs.expire_nodest_conn", Value: "1"},
		{Key: "net.ipv4.vs.expire_quiescent_template", Value: "1"},
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 5 || major == 5 && minor < 9) {
		// Before Linux 5.9, reuse of a client's port takes one second.
		sysctls = append(sysctls, Sysctl{Key: "net.ipv4.vs.conn_reuse_mode", Value: "0"})
	}
	return sysctls
}

// conntrackSysctls returns kube-proxy's values: a table size by the number of processors, and timeouts suited to
// forwarded connections.
func conntrackSysctls(cpus int) []Sysctl {
	const perCPU, floor, ceiling = 32768, 131072, 1048576
	return []Sysctl{
		{Key: "net.netfilter.nf_conntrack_max", Value: strconv.Itoa(min(max(perCPU*cpus, floor), ceiling)), AtLeast: true},
		{Key: "net.netfilter.nf_conntrack_tcp_timeout_established", Value: "86400"},
		{Key: "net.netfilter.nf_conntrack_tcp_timeout_close_wait", Value: "3600"},
	}
}

// SetSysctls sets the parameters that differ, in the network namespace of the calling thread, and returns the changes.
// It continues after an error; the errors are joined.
func SetSysctls(want []Sysctl) ([]Change, error) {
	var changes []Change
	var errs []error
	for _, s := range want {
		if s.Relies && len(errs) > 0 {
			continue
		}
		from, err := setSysctl(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !s.met(from):
			changes = append(changes, Change{Key: s.Key, From: from, To: s.Value})
		}
	}
	return changes, errors.Join(errs...)
}

// met reports whether a value is sufficient.
func (s Sysctl) met(value string) bool {
	if !s.AtLeast {
		return value == s.Value || slices.Contains(strings.Fields(s.Stricter), value)
	}
	have, err := strconv.Atoi(value)
	want, wantErr := strconv.Atoi(s.Value)
	return cmp.Or(err, wantErr) == nil && have >= want
}

// Read returns the current value of the parameter.
func (s Sysctl) Read() (string, error) {
	value, err := os.ReadFile(s.path())
	if err != nil {
		return "", fmt.Errorf("read sysctl %s%s: %w", s.Key, remedy(s.Key, err), err)
	}
	return strings.TrimSpace(string(value)), nil
}

func (s Sysctl) path() string {
	return filepath.Join("/proc/sys", strings.NewReplacer(".", "/", "/", ".").Replace(s.Key))
}

// setSysctl sets the parameter and returns its previous value.
func setSysctl(s Sysctl) (string, error) {
	from, err := s.Read()
	if err != nil || s.met(from) {
		return from, err
	}
	if err := os.WriteFile(s.path(), []byte(s.Value), 0o644); err != nil {
		return "", fmt.Errorf("set sysctl %s=%s%s: %w", s.Key, s.Value, remedy(s.Key, err), err)
	}
	return from, nil
}

// remedy returns a remediation for the error.
func remedy(key string, err error) string {
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case missing && strings.HasPrefix(key, "net.ipv4.vs."):
		return ` (module ip_vs missing: run "modprobe ip_vs" on the node)`
	case missing && strings.HasPrefix(key, "net.netfilter."):
		return ` (module nf_conntrack missing: run "modprobe nf_conntrack" on the node)`
	case missing && strings.HasPrefix(key, "net.ipv6."):
		return ` (IPv6 is off in this kernel: remove the IPv6 addresses from the pools, or boot without ipv6.disable=1)`
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		return " (run as root with /proc/sys writable, or set it on the node beforehand)"
	}
	return ""
}

// SysctlWatch checks repeatedly whether parameters are as wanted, with one system call each: it keeps their files open.
// The zero value checks none.
type SysctlWatch struct {
	want  []Sysctl
	files []int
}

// Open replaces the parameters to check, in the network namespace of the calling thread; an empty list closes all
// files.
func (m *SysctlWatch) Open(want []Sysctl) {
	for _, fd := range m.files {
		unix.Close(fd)
	}
	m.want, m.files = nil, nil
	for _, s := range want {
		fd, err := unix.Open(s.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			m.Open(nil)
			return
		}
		m.want, m.files = append(m.want, s), append(m.files, fd)
	}
}

// Met reports whether there are any parameters, and all are as wanted. Reading fails when a parameter is gone, as
// with a module or an interface.
func (m *SysctlWatch) Met() bool {
	var value [128]byte
	for i, s := range m.want {
		n, err := unix.Pread(m.files[i], value[:], 0)
		if err != nil || !s.met(strings.TrimSpace(string(value[:n]))) {
			return false
		}
	}
	return len(m.want) > 0
}

const forwarding6 = "net.ipv6.conf.all.forwarding"

// keepRouterAdvertisements returns the parameters to set before IPv6 forwarding is enabled. A kernel that forwards
// counts as a router: it deletes its default routes from router advertisements and accepts no more, unless accept_ra is
// 2 (Documentation/networking/ip-sysctl.rst; addrconf_fixup_forwarding in net/ipv6/addrconf.c). So each interface with
// such a route gets that value. If another program handles the advertisements (accept_ra=0), no route is lost.
func keepRouterAdvertisements() ([]Sysctl, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list the IPv6 routes: %w", err)
	}
	var keep []Sysctl
	for _, route := range routes {
		iface, err := net.InterfaceByIndex(route.LinkIndex)
		if err != nil {
			continue // the interface is gone
		}
		s := Sysctl{Key: "net.ipv6.conf." + strings.ReplaceAll(iface.Name, ".", "/") + ".accept_ra", Value: "2"}
		if value, err := s.Read(); err != nil || value == "0" || slices.Contains(keep, s) {
			continue
		}
		keep = append(keep, s)
	}
	return keep, nil
}
