package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/traffic"
)

func prefixes(texts ...string) (p []netip.Prefix) {
	for _, text := range texts {
		p = append(p, netip.MustParsePrefix(text))
	}
	return p
}

func TestConfig(t *testing.T) {
	defaults := config{
		Dataplane: "auto", Forwarding: "pod", TunnelPort: 7949, Scheduler: "rr", DrainLimit: 15 * time.Minute, EndpointChecks: true, AnswerPing: true,
		LeaveOutUnreachable: true, ResetAfter: 10 * time.Second, Traffic: traffic.Auto,
		HealthzAddress: netip.MustParseAddrPort("0.0.0.0:10256"), ProxyModeAddress: netip.MustParseAddrPort("127.0.0.1:10249"),
		Conntrack: conntrackLimits{
			MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
		},
		Failover:      failover{Profile: member.Standard, Port: 7948},
		Announcements: announcements{Refresh: 100 * time.Second, PerSecond: 5000},
		DetectLocal:   forwarding.DetectLocal{Mode: "NodeCIDR"},
	}
	full := config{
		ServiceProxy: true, IgnoreExcludeLB: true, IPv6Forwarding: true, Dataplane: "ipvs", Forwarding: "direct", TunnelPort: 7998, Scheduler: "mh", Flags: 0x18,
		NodePortCIDRs: prefixes("192.0.2.0/24", "2001:db8::/64"),
		DetectLocal:   forwarding.DetectLocal{Mode: "ClusterCIDR", CIDRs: prefixes("198.51.100.0/24")},
		DrainLimit:    90 * time.Second, HealthzAddress: netip.MustParseAddrPort("[2001:db8::1]:10257"),
		ProxyModeAddress: netip.MustParseAddrPort("[::1]:10250"), StateDir: "/var/lib/ironlb",
		ResetAfter: 45 * time.Second,
		Traffic:    traffic.Endpoints,
		Timeouts:   timeouts{TCP: 7200 * time.Second, TCPFin: time.Minute, UDP: 30 * time.Second},
		Conntrack:  conntrackLimits{MaxPerCore: 1000, TCPEstablishedTimeout: time.Hour},
		Failover:   failover{Profile: member.Fast, Port: 7999, Cluster: "east", Broadcast: true},

		Announcements: announcements{PerSecond: 1000},
	}
	changed := func(f func(*config)) config { c := defaults; f(&c); return c }
	for _, c := range []struct {
		name, text string
		want       config
	}{
		{"empty", "", defaults},
		{"comments", "# nothing\n---\n# set\n", defaults},
		{"null keeps the default", "drainLimit: null\nnodePortAddresses:\nipvs:\n", defaults},
		{"primary", "nodePortAddresses: [primary]", defaults},
		{"one field", "---\nserviceProxy: true\n", changed(func(c *config) { c.ServiceProxy = true })},
		{"no resets", "unreachableEndpoints: {resetAfter: 0s}", changed(func(c *config) { c.ResetAfter = 0 })},
		{"one of a group", "conntrack: {min: 0}", changed(func(c *config) { c.Conntrack.Min = 0 })},
		{"flags of their own", "scheduler: mh", changed(func(c *config) { c.Scheduler, c.Flags = "mh", 0x18 })},
		{"no flags", "scheduler: sh,none", changed(func(c *config) { c.Scheduler = "sh" })},
		{"no /proxyMode", "proxyModeBindAddress: ''", changed(func(c *config) { c.ProxyModeAddress = netip.AddrPort{} })},
		{"the mode of podCIDRs", "podCIDRs: [198.51.100.0/24]", changed(func(c *config) {
			c.DetectLocal = forwarding.DetectLocal{Mode: "ClusterCIDR", CIDRs: prefixes("198.51.100.0/24")}
		})},
		{
			"Pods by a bridge", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
			changed(func(c *config) { c.DetectLocal = forwarding.DetectLocal{Mode: "BridgeInterface", Interface: "cni0"} }),
		},
		{
			"Pods by a prefix", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}",
			changed(func(c *config) {
				c.DetectLocal = forwarding.DetectLocal{Mode: "InterfaceNamePrefix", Interface: "cali"}
			}),
		},
		{"JSON", `{"dataplane": "nftables"}`, changed(func(c *config) { c.Dataplane = "nftables" })},
		{"everything", `
ignoreExcludeLB: true
serviceProxy: true
dataplane: ipvs
forwarding: direct
tunnelPort: 7998
scheduler: mh,port,fallback
nodePortAddresses: [192.0.2.0/24, "2001:db8::/64"]
detectLocalMode: ClusterCIDR
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
podCIDRs: [198.51.100.0/24]
drainLimit: 90s
endpointChecks: false
unreachableEndpoints: {leaveOut: false, resetAfter: 45s}
answerPing: false
ipv6Forwarding: true
healthzBindAddress: "[2001:db8::1]:10257"
proxyModeBindAddress: "[::1]:10250"
stateDir: /var/lib/ironlb
ipvs: {tcpTimeout: 2h, tcpFinTimeout: 1m, udpTimeout: 30s, metrics: endpoints}
conntrack: {maxPerCore: 1000, min: 0, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 0s}
failover: {profile: fast, port: 7999, cluster: east, transport: broadcast}
announcements: {refresh: 0s, perSecond: 1000}
`, full},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseConfig([]byte(c.text))
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestConfigErrorsNameTheFix(t *testing.T) {
	for text, want := range map[string][]string{
		"serviceProxi: true":                               {`"serviceProxi"`, "docs/reference/configuration.md"},
		"announcements: {refresh: -1s, perSecond: 99}":     {`announcements.refresh: "-1s"`, `announcements.perSecond: "99"`, "from 100 to 100000"},
		"failover: {profile: quick, port: 0, cluster: ''}": {`failover.profile: "quick"`, "standard, fast or slow", "failover.port", "failover.cluster"},
		"conntrack: {max: 1}":                              {`"conntrack.max"`},
		"ServiceProxy: true":                               {`"ServiceProxy"`},
		"serviceProxy: 'yes'":                              {"serviceProxy is a string", "true or false"},
		"dataplane: ipvs\ndataplane: auto":                 {`"dataplane" already set`},
		"dataplane: iptables":                              {`dataplane: "iptables"`, "auto, ipvs or nftables"},
		"forwarding: nodeport":                             {`forwarding: "nodeport"`, "pod or direct"},
		"tunnelPort: 65536":                                {"tunnelPort", "UDP port"},
		"scheduler: wrrr":                                  {`scheduler: "wrrr"`, "wlc"},
		"scheduler: rr,port":                               {`scheduler: "rr,port"`, "give \"rr\" alone"},
		"scheduler: sh,ports":                              {`scheduler: "sh,ports"`, "give fallback, port"},
		"nodePortAddresses: []":                            {"nodePortAddresses", "[primary]"},
		"nodePortAddresses: primary":                       {"nodePortAddresses is a string", "a list"},
		"nodePortAddresses: [192.0.2.1]":                   {`nodePortAddresses[0]: "192.0.2.1"`, "192.0.2.0/24"},
		"podCIDRs: [192.0.2.0/24, x]":                      {`podCIDRs[1]: "x"`, "CIDR"},
		"podCIDRs: [192.0.2.1/24]":                         {"give 192.0.2.0/24"},
		"podCIDRs: ['::ffff:192.0.2.0/120']":               {"podCIDRs[0]"},
		"drainLimit: 0s":                                   {"drainLimit", "from 1s"},
		"unreachableEndpoints: {resetAfter: 100ms}":        {"unreachableEndpoints.resetAfter", "full seconds from 0s"},
		"drainLimit: 1500ms":                               {"drainLimit", "full seconds"},
		"drainLimit: 15":                                   {"drainLimit is a number", "text"},
		"ipvs: {tcpTimeout: 1000h}":                        {"ipvs.tcpTimeout", "744h"},
		"ipvs: {udpTimeout: -1s}":                          {"ipvs.udpTimeout"},
		"ipvs: {metrics: all}":                             {`ipvs.metrics: "all"`, "none, virtualServers or endpoints"},
		"ipvs: 5":                                          {"ipvs is a number", "fields"},
		"conntrack: {min: -1}":                             {`conntrack.min: "-1"`, "from 0"},
		"conntrack: {min: 1.5}":                            {"conntrack.min is a number 1.5", "an integer"},
		"conntrack: {maxPerCore: 3000000000}":              {"conntrack.maxPerCore", "2147483647"},
		"stateDir: state":                                  {`stateDir: "state"`, "/var/lib/ironlb"},
		"healthzBindAddress: 10256":                        {"healthzBindAddress is a number"},
		"healthzBindAddress: '192.0.2.1'":                  {"healthzBindAddress", "0.0.0.0:10256"},
		"healthzBindAddress: '192.0.2.1:0'":                {"healthzBindAddress"},
		"proxyModeBindAddress: '0.0.0.0:10249'":            {`proxyModeBindAddress: "0.0.0.0:10249"`, "127.0.0.1:10249"},
		"proxyModeBindAddress: '127.0.0.1:0'":              {"proxyModeBindAddress"},
		"- a":                                              {"must be fields"},
		"a: [":                                             {"not well-formed"},
		"serviceProxy: true\n---\nserviceProxy: false\n":   {"more than one YAML document"},
		"failover: {transport: unicast}":                   {`failover.transport: "unicast"`, "multicast or broadcast"},
	} {
		_, err := parseConfig([]byte(text))
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%q: error %v, want it to contain %q", text, err, w)
			}
		}
	}
	// All errors at once.
	_, err := parseConfig([]byte("dataplane: x\ndrainLimit: soon\npodCIDRs: [z]\n"))
	for _, field := range []string{"dataplane", "drainLimit", "podCIDRs[0]"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

func TestDetectLocalFaults(t *testing.T) {
	for _, c := range []struct {
		text    string
		message []string
	}{
		{"detectLocalMode: nodeCIDR", []string{
			`detectLocalMode: "nodeCIDR"`, "NodeCIDR ClusterCIDR BridgeInterface InterfaceNamePrefix",
		}},
		{"detectLocalMode: ClusterCIDR", []string{"podCIDRs", "clusterCIDR"}},
		{"detectLocalMode: NodeCIDR\npodCIDRs: [192.0.2.0/24]", []string{
			`podCIDRs: "192.0.2.0/24"`, "set detectLocalMode: ClusterCIDR",
		}},
		{"detectLocalMode: BridgeInterface", []string{`detectLocal.bridgeInterface: ""`}},
		{"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: a123456789012345}", []string{
			"detectLocal.bridgeInterface", "at most 15",
		}},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali+}", []string{
			`interfaceNamePrefix: "cali+"`, "without * or +",
		}},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali012345678901}", []string{
			"at most 14",
		}},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cni0}", []string{
			"detectLocal.interfaceNamePrefix", `bridgeInterface: "cni0"`, "set detectLocalMode: BridgeInterface",
		}},
		{"detectLocal: {bridgeInterface: cni0}", []string{
			`detectLocal.bridgeInterface: "cni0"`, "set detectLocalMode: BridgeInterface",
		}},
	} {
		_, err := parseConfig([]byte(c.text))
		for _, message := range c.message {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%q: error %v, want it to contain %q", c.text, err, message)
			}
		}
	}
}

func TestConfigPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := readConfig(path); err == nil || !strings.Contains(err.Error(), "--config") || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("answerPing: 1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readConfig(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file with a fault: %v", err)
	}
	cmd := command()
	cmd.SetArgs([]string{"--node-name=n", "--config=" + path})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "answerPing") {
		t.Errorf("started with it: %v", err)
	}
}

func TestConntrackMax(t *testing.T) {
	limits := newConfig().Conntrack
	for cores, want := range map[int]int{1: 131072, 4: 131072, 8: 262144, 32: 1 << 20, 256: 1 << 20} {
		if got := limits.max(cores); got != want {
			t.Errorf("%d cores: %d, want %d", cores, got, want)
		}
	}
	if got := (conntrackLimits{}).max(8); got != 0 {
		t.Errorf("left alone: %d, want 0", got)
	}
}

// The configured limits replace the built-in ones. A limit of 0, and sysctls other than conntrack's, stay unchanged.
func TestConntrackSysctls(t *testing.T) {
	want, err := link.Wanted(link.Needs{ServiceProxy: true})
	if err != nil {
		t.Fatal(err)
	}
	values := func(c conntrackLimits) map[string]string {
		values := map[string]string{}
		for _, s := range c.replace(want, 8) {
			values[strings.TrimPrefix(s.Key, "net.netfilter.nf_conntrack_")] = s.Value
		}
		return values
	}
	all := values(newConfig().Conntrack)
	if all["max"] != "262144" || all["tcp_timeout_established"] != "86400" || all["tcp_timeout_close_wait"] != "3600" || len(all) != len(want) {
		t.Errorf("by default %v", all)
	}
	some := values(conntrackLimits{Min: 5, TCPCloseWaitTimeout: time.Minute})
	if some["max"] != "5" || some["tcp_timeout_established"] != "" || some["tcp_timeout_close_wait"] != "60" || len(some) != len(want)-1 {
		t.Errorf("changed %v", some)
	}
}

// docs/reference/configuration.md lists exactly the fields of the file.
func TestConfigIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(text), "\n## ") // later tables are about other things
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9.]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented[match[1]] = true
	}
	for _, field := range fields("", reflect.TypeFor[configFile]()) {
		if !documented[field] {
			t.Errorf("docs/reference/configuration.md lacks %s", field)
		}
		delete(documented, field)
	}
	for field := range documented {
		t.Errorf("docs/reference/configuration.md has %s, which no file may have", field)
	}
}

func fields(prefix string, of reflect.Type) (names []string) {
	for i := range of.NumField() {
		name := prefix + of.Field(i).Tag.Get("json")
		if of.Field(i).Type.Kind() == reflect.Struct {
			names = append(names, fields(name+".", of.Field(i).Type)...)
			continue
		}
		names = append(names, name)
	}
	return names
}
