package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/traffic"
)

// configFile is the file as written. A missing field keeps its default.
type configFile struct {
	ServiceProxy       *bool    `json:"serviceProxy"`
	Dataplane          *string  `json:"dataplane"`
	Forwarding         *string  `json:"forwarding"`
	TunnelPort         *int     `json:"tunnelPort"`
	Scheduler          *string  `json:"scheduler"`
	NodePortAddresses  []string `json:"nodePortAddresses"`
	PodCIDRs           []string `json:"podCIDRs"`
	DetectLocalMode    *string  `json:"detectLocalMode"`
	ExternalIPCIDRs    []string `json:"externalIPCIDRs"`
	IgnoreExcludeLB    *bool    `json:"ignoreExcludeLB"`
	DrainLimit         *string  `json:"drainLimit"`
	EndpointChecks     *bool    `json:"endpointChecks"`
	AnswerPing         *bool    `json:"answerPing"`
	IPv6Forwarding     *bool    `json:"ipv6Forwarding"`
	HealthzBindAddress *string  `json:"healthzBindAddress"`
	ProxyModeBindAddr  *string  `json:"proxyModeBindAddress"`
	StateDir           *string  `json:"stateDir"`
	Unreachable        struct {
		LeaveOut   *bool   `json:"leaveOut"`
		ResetAfter *string `json:"resetAfter"`
	} `json:"unreachableEndpoints"`
	DetectLocal struct {
		BridgeInterface     *string `json:"bridgeInterface"`
		InterfaceNamePrefix *string `json:"interfaceNamePrefix"`
	} `json:"detectLocal"`
	IPVS struct {
		TCPTimeout    *string `json:"tcpTimeout"`
		TCPFinTimeout *string `json:"tcpFinTimeout"`
		UDPTimeout    *string `json:"udpTimeout"`
		Metrics       *string `json:"metrics"`
	} `json:"ipvs"`
	Conntrack struct {
		MaxPerCore            *int    `json:"maxPerCore"`
		Min                   *int    `json:"min"`
		TCPEstablishedTimeout *string `json:"tcpEstablishedTimeout"`
		TCPCloseWaitTimeout   *string `json:"tcpCloseWaitTimeout"`
	} `json:"conntrack"`
	Failover struct {
		Profile   *string `json:"profile"`
		Port      *int    `json:"port"`
		Cluster   *string `json:"cluster"`
		Transport *string `json:"transport"`
	} `json:"failover"`
	Announcements struct {
		Refresh   *string `json:"refresh"`
		PerSecond *int    `json:"perSecond"`
	} `json:"announcements"`
}

// readConfig reads the file at path; an empty path gives the defaults.
func readConfig(path string) (config, error) {
	if path == "" {
		return newConfig(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return config{}, fmt.Errorf("read the configuration (--config): %w", err)
	}
	c, err := parseConfig(data)
	if err != nil {
		return config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// parseConfig returns every error of the file, not only the first.
func parseConfig(data []byte) (config, error) {
	f, err := decodeConfig(data)
	if err != nil {
		return config{}, err
	}
	c := newConfig()
	set(&c.ServiceProxy, f.ServiceProxy)
	set(&c.IgnoreExcludeLB, f.IgnoreExcludeLB)
	set(&c.EndpointChecks, f.EndpointChecks)
	set(&c.AnswerPing, f.AnswerPing)
	set(&c.IPv6Forwarding, f.IPv6Forwarding)
	var p configParser
	p.dataplane(&c.Dataplane, f.Dataplane)
	p.forwarding(&c.Forwarding, f.Forwarding)
	p.port("tunnelPort", &c.TunnelPort, f.TunnelPort)
	p.scheduler(&c, f.Scheduler)
	p.nodePortAddresses(&c, f.NodePortAddresses)
	p.detectLocal(&c.DetectLocal, f)
	c.ExternalIPCIDRs = p.prefixes("externalIPCIDRs", f.ExternalIPCIDRs)
	p.duration("drainLimit", &c.DrainLimit, f.DrainLimit, time.Second)
	set(&c.LeaveOutUnreachable, f.Unreachable.LeaveOut)
	p.duration("unreachableEndpoints.resetAfter", &c.ResetAfter, f.Unreachable.ResetAfter, 0)
	p.addrPort("healthzBindAddress", &c.HealthzAddress, f.HealthzBindAddress)
	p.loopback("proxyModeBindAddress", &c.ProxyModeAddress, f.ProxyModeBindAddr)
	p.directory("stateDir", &c.StateDir, f.StateDir)
	p.duration("ipvs.tcpTimeout", &c.Timeouts.TCP, f.IPVS.TCPTimeout, 0)
	p.duration("ipvs.tcpFinTimeout", &c.Timeouts.TCPFin, f.IPVS.TCPFinTimeout, 0)
	p.duration("ipvs.udpTimeout", &c.Timeouts.UDP, f.IPVS.UDPTimeout, 0)
	p.traffic(&c.Traffic, f.IPVS.Metrics)
	p.count("conntrack.maxPerCore", &c.Conntrack.MaxPerCore, f.Conntrack.MaxPerCore)
	p.count("conntrack.min", &c.Conntrack.Min, f.Conntrack.Min)
	p.duration("conntrack.tcpEstablishedTimeout", &c.Conntrack.TCPEstablishedTimeout, f.Conntrack.TCPEstablishedTimeout, 0)
	p.duration("conntrack.tcpCloseWaitTimeout", &c.Conntrack.TCPCloseWaitTimeout, f.Conntrack.TCPCloseWaitTimeout, 0)
	p.failover(&c.Failover, f)
	p.duration("announcements.refresh", &c.Announcements.Refresh, f.Announcements.Refresh, 0)
	p.perSecond(&c.Announcements.PerSecond, f.Announcements.PerSecond)
	return c, errors.Join(p.errs...)
}

// decodeConfig refuses unknown fields, fields given twice, a second document and values of the wrong kind.
func decodeConfig(data []byte) (configFile, error) {
	var f configFile
	if documents(data) > 1 {
		return f, errors.New("holds more than one YAML document: keep one")
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return f, fmt.Errorf("not well-formed: %w", err)
	}
	if text = bytes.TrimSpace(text); string(text) != "null" && !bytes.HasPrefix(text, []byte("{")) {
		return f, errors.New("must be fields with values, as \"serviceProxy: true\"")
	}
	strict, err := kjson.UnmarshalStrict(text, &f)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return f, fmt.Errorf("%s is a %s: it must be %s", wrong.Field, wrong.Value, kinds[wrong.Type.Kind().String()])
	}
	if len(strict) > 0 {
		err = fmt.Errorf("%w: remove or correct it (docs/reference/configuration.md lists all fields)", errors.Join(strict...))
	}
	return f, err
}

// documents counts the YAML documents that contain more than comments. The library would ignore all but the first.
func documents(data []byte) (n int) {
	for document := range strings.SplitSeq("\n"+string(data), "\n---") {
		for line := range strings.Lines(document) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				n++
				break
			}
		}
	}
	return n
}

// kinds are the types of configFile in an operator's words.
var kinds = map[string]string{
	"bool": "true or false", "int": "an integer", "string": "text, in quotes if need be",
	"slice": "a list", "struct": "fields with values",
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// configParser collects the errors of values.
type configParser struct{ errs []error }

func (p *configParser) fault(field, value, fix string) {
	p.errs = append(p.errs, fmt.Errorf("%s: %q is not valid: %s", field, value, fix))
}

func (p *configParser) dataplane(to *dataplaneKind, text *string) {
	if text == nil {
		return
	}
	known := []dataplaneKind{dataplaneAuto, dataplaneIPVS, dataplaneNFTables}
	if *to = dataplaneKind(*text); !slices.Contains(known, *to) {
		p.fault("dataplane", *text, "give auto, ipvs or nftables")
	}
}

func (p *configParser) forwarding(to *v1alpha1.Forwarding, text *string) {
	if text == nil {
		return
	}
	var err error
	if *to, err = v1alpha1.ParseDefaultForwarding(*text); err != nil {
		p.fault("forwarding", *text, "give pod or direct")
	}
}

func (p *configParser) traffic(to *traffic.Detail, text *string) {
	if text == nil {
		return
	}
	known := []traffic.Detail{traffic.Auto, traffic.None, traffic.VirtualServers, traffic.Endpoints}
	if *to = traffic.Detail(*text); !slices.Contains(known, *to) {
		p.fault("ipvs.metrics", *text, "give auto, none, virtualServers or endpoints")
	}
}

func (p *configParser) failover(to *failover, f configFile) {
	if name := f.Failover.Profile; name != nil {
		profile, err := member.ProfileNamed(*name)
		if err != nil {
			p.fault("failover.profile", *name, "give standard, fast or slow")
		}
		to.Profile = profile
	}
	p.port("failover.port", &to.Port, f.Failover.Port)
	if cluster := f.Failover.Cluster; cluster != nil {
		if *cluster == "" {
			p.fault("failover.cluster", "", "give a name that no other cluster on the nodes' networks has")
		}
		to.Cluster = *cluster
	}
	if transport := f.Failover.Transport; transport != nil {
		if to.Broadcast = *transport == "broadcast"; !to.Broadcast && *transport != "multicast" {
			p.fault("failover.transport", *transport, "give multicast or broadcast")
		}
	}
}

// port parses a UDP port that all nodes share.
func (p *configParser) port(field string, to *uint16, n *int) {
	if n == nil {
		return
	}
	if *n < 1 || *n > math.MaxUint16 {
		p.fault(field, fmt.Sprint(*n), "give a UDP port, the same on all nodes")
	}
	*to = uint16(*n)
}

// perSecond parses a rate: fewer than 100 could not be spread over ticks of 10 ms.
func (p *configParser) perSecond(to *int, n *int) {
	if n == nil {
		return
	}
	if *n < 100 || *n > 100000 {
		p.fault("announcements.perSecond", fmt.Sprint(*n), "give a number from 100 to 100000")
		return
	}
	*to = *n
}

func (p *configParser) scheduler(c *config, text *string) {
	if text == nil {
		return
	}
	var err error
	if c.Scheduler, c.Flags, err = parseScheduler(*text); err != nil {
		p.fault("scheduler", *text, err.Error())
	}
}

func (p *configParser) nodePortAddresses(c *config, texts []string) {
	switch {
	case texts == nil:
	case len(texts) == 1 && texts[0] == "primary":
	case len(texts) == 0:
		p.fault("nodePortAddresses", "[]", "give [primary], or the CIDRs of the addresses that serve NodePorts")
	default:
		c.NodePortCIDRs = p.prefixes("nodePortAddresses", texts)
	}
}

func (p *configParser) prefixes(field string, texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch at := fmt.Sprintf("%s[%d]", field, i); {
		case err != nil && text == "primary":
			p.fault(at, text, "primary must be the only entry; list the addresses' CIDRs instead")
		case err != nil || prefix.Addr().Is4In6():
			p.fault(at, text, "give a CIDR, as 192.0.2.0/24 or 2001:db8::/32")
		case prefix != prefix.Masked():
			p.fault(at, text, fmt.Sprintf("bits beyond the prefix are set; give %v", prefix.Masked()))
		default:
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// durationMost keeps every duration within the kernel's 32 bits of seconds, times its clock rate.
const durationMost = 31 * 24 * time.Hour

// duration parses full seconds, the kernel's unit.
func (p *configParser) duration(field string, to *time.Duration, text *string, least time.Duration) {
	if text == nil {
		return
	}
	d, err := time.ParseDuration(*text)
	if err != nil || d < least || d > durationMost || d%time.Second != 0 {
		p.fault(field, *text, fmt.Sprintf("give full seconds from %v to %v, as 90s, 15m or 24h", least, durationMost))
		return
	}
	*to = d
}

func (p *configParser) count(field string, to *int, n *int) {
	if n == nil {
		return
	}
	if *n < 0 || *n > math.MaxInt32 {
		p.fault(field, fmt.Sprint(*n), fmt.Sprintf("give a number from 0 to %d", math.MaxInt32))
		return
	}
	*to = *n
}

func (p *configParser) directory(field string, to *string, text *string) {
	if text == nil {
		return
	}
	if *text != "" && !filepath.IsAbs(*text) {
		p.fault(field, *text, "give an absolute path, as /var/lib/ironlb, or \"\" for none")
		return
	}
	*to = *text
}

func (p *configParser) addrPort(field string, to *netip.AddrPort, text *string) {
	if text == nil {
		return
	}
	a, err := netip.ParseAddrPort(*text)
	if err != nil || a.Port() == 0 {
		p.fault(field, *text, "give an address and a port, as 0.0.0.0:10256 or [2001:db8::1]:10256")
		return
	}
	*to = a
}

// loopback parses a loopback address and port, or none.
func (p *configParser) loopback(field string, to *netip.AddrPort, text *string) {
	switch {
	case text == nil:
	case *text == "":
		*to = netip.AddrPort{}
	default:
		a, err := netip.ParseAddrPort(*text)
		if err != nil || a.Port() == 0 || !a.Addr().IsLoopback() {
			p.fault(field, *text, "give a port of the loopback interface, as 127.0.0.1:10249, or \"\" for none")
			return
		}
		*to = a
	}
}

// parseScheduler parses the annotation ironlb.io/scheduler.
func parseScheduler(text string) (name string, flags ipvs.Flags, err error) {
	s, err := v1alpha1.ParseScheduler(text)
	if err != nil {
		return "", 0, err
	}
	if s.Fallback {
		flags |= ipvs.SchedFallback
	}
	if s.Port {
		flags |= ipvs.SchedPort
	}
	return s.Name, flags, nil
}
