package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ironlb/ironlb/cmd/internal/logs"
	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
)

// defaultMetricsAddress is not reachable from other hosts.
const defaultMetricsAddress = "127.0.0.1:7950"

// options are the flags.
type options struct {
	nodeName       string
	passwords      string // namespace
	kubeconfig     string
	metricsAddress string
	profiling      bool
	secureAddress  nodeAddress // invalid for none
	certFile       string      // empty: self-signed
	certKeyFile    string
	logs           logs.Options
	configFile     string
	keyFile        string
	bgpSocket      string
	dumpSocket     string
	config         config
}

func (o options) check() error {
	if o.nodeName == "" {
		return errors.New("the name of this node is missing: give --node-name or set NODE_NAME")
	}
	if o.bgpSocket != "" && !filepath.IsAbs(o.bgpSocket) {
		return fmt.Errorf("--bgp-socket is %q: it must be an absolute path, such as %s", o.bgpSocket, bgp.DefaultSocket)
	}
	if o.dumpSocket != "" && !filepath.IsAbs(o.dumpSocket) {
		return fmt.Errorf("--dump-socket is %q: it must be an absolute path, such as %s", o.dumpSocket, defaultDumpSocket)
	}
	if (o.certFile == "") != (o.certKeyFile == "") || o.certFile != "" && !o.secureAddress.IsValid() {
		return errors.New("--tls-cert-file, --tls-private-key-file: give both or none, and with --secure-metrics-bind-address only")
	}
	if at, err := netip.ParseAddrPort(o.metricsAddress); o.profiling && (err != nil || !at.Addr().IsLoopback()) {
		return fmt.Errorf("--profiling with --metrics-bind-address %s: profiles are served on the loopback interface only, such as %s",
			o.metricsAddress, defaultMetricsAddress)
	}
	return nil
}

// nodeAddress is a flag: an address of the node and a port. Brackets may enclose addresses of both families, because a
// manifest does not know the family.
type nodeAddress struct{ netip.AddrPort }

// Set parses the flag.
func (n *nodeAddress) Set(text string) error {
	host, port, err := net.SplitHostPort(text)
	addr, addrErr := netip.ParseAddr(host)
	number, portErr := strconv.ParseUint(port, 10, 16)
	// An unspecified address would also be served on the addresses of Services.
	if err != nil || addrErr != nil || portErr != nil || number == 0 || addr.IsUnspecified() {
		return errors.New("it must be an address of this node and a port, such as 192.0.2.10:7950 or [2001:db8::10]:7950")
	}
	n.AddrPort = netip.AddrPortFrom(addr.Unmap(), uint16(number))
	return nil
}

// Type names the value in the help.
func (n *nodeAddress) Type() string { return "address:port" }

// String returns the value, empty for none.
func (n *nodeAddress) String() string {
	if !n.IsValid() {
		return ""
	}
	return n.AddrPort.String()
}

// command returns the command line. The environment is read only here.
func command() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "ironlb-speaker",
		Short: "Forward LoadBalancer addresses on this node with IPVS and answer ARP and neighbor discovery for those it owns",
		Long: `ironlb-speaker runs on every node, with CAP_NET_ADMIN, CAP_NET_RAW and better CAP_SYS_NICE in the host's network namespace.

It makes the kernel and the network agree with the Services of type LoadBalancer: local routes, IPVS virtual servers,
the nftables table "ip ironlb", and ARP answers for the addresses that this node owns. When it stops, all of that but
the ARP answers stays, so that a restart breaks no connection. "ironlb-speaker cleanup" removes it.

With --bgp-socket it has ironlb-bgpd announce addresses to routers, as BGPPeers and BGPAdvertisements configure. Without, those have no effect on
this node. What is announced stays so when ironlb-speaker stops, for the time that ironlb-bgpd holds it.

How it serves is in the file of --config; docs/reference/configuration.md lists its fields. /metrics, /healthz and /readyz are served
on --metrics-bind-address, and /metrics/bgpd with the metrics of ironlb-bgpd. With --secure-metrics-bind-address both are also served over HTTPS, to
clients with a bearer token that the API server permits to get /metrics.`,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			log, err := o.logs.Logger(os.Stderr)
			if err != nil {
				return err
			}
			if o.config, err = readConfig(o.configFile); err != nil {
				return err
			}
			return run(cmd.Context(), o, log)
		},
	}
	root.Flags().StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node in the API (default $NODE_NAME)")
	root.Flags().StringVar(&o.passwords, "password-namespace", v1alpha1.PasswordNamespace, "namespace of the Secrets that BGPPeers name")
	root.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as a Pod does)")
	root.Flags().StringVar(&o.metricsAddress, "metrics-bind-address", defaultMetricsAddress, "where /metrics, /healthz and /readyz are served")
	root.Flags().Var(&o.secureAddress, "secure-metrics-bind-address",
		"address of this node where metrics are served over HTTPS to clients that the API server authorizes (default: nowhere)")
	root.Flags().StringVar(&o.certFile, "tls-cert-file", "",
		"certificate for --secure-metrics-bind-address, read again when it changes (default: self-signed, in memory)")
	root.Flags().StringVar(&o.certKeyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	root.Flags().BoolVar(&o.profiling, "profiling", false, "serve /debug/pprof/ on --metrics-bind-address, which must be on the loopback interface")
	root.Flags().StringVar(&o.keyFile, "key-file", "/etc/ironlb-keys/keys", "file of the keys that authenticate speakers to one another, one to a line")
	root.Flags().StringVar(&o.bgpSocket, "bgp-socket", "", "unix socket of ironlb-bgpd, the absolute path of its --socket (default: no BGP on this node)")
	root.Flags().StringVar(&o.dumpSocket, "dump-socket", "", "unix socket for \"ironlb-speaker dump\", in a folder of its own (default: none)")
	o.logs.AddFlags(root.PersistentFlags())
	root.CompletionOptions.DisableDefaultCmd = true
	prepare, cleanup := prepareCommand(&o), cleanupCommand(&o)
	for _, cmd := range []*cobra.Command{root, prepare, cleanup} {
		cmd.Flags().StringVar(&o.configFile, "config", "", "YAML file with the configuration (default: all defaults)")
	}
	root.AddCommand(cleanup, prepare, retainCommand(), dumpCommand(), idleCommand(), echoCommand())
	return root
}

func prepareCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "prepare",
		Short: "Load modules and set the sysctls, where the speaker itself may not",
		Long: `Load the modules and set the sysctls that the file of --config asks for, where the speaker itself may not. Nothing that
forwards is changed.

What fails is logged and does not fail the command: the speaker detects it again and reports it on /readyz.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log, err := o.logs.Logger(os.Stderr)
			if err != nil {
				return err
			}
			c, err := readConfig(o.configFile)
			if err != nil {
				return err
			}
			prepare(c, log)
			return nil
		},
	}
}

// plan returns the options of the plan.
func (o options) plan() plan.Options {
	c := o.config
	return plan.Options{
		Node:     o.nodeName,
		Interval: c.Failover.Profile.Interval,
		Options: forwarding.Options{
			ServiceProxy:   c.ServiceProxy,
			Scheduler:      c.Scheduler,
			Flags:          c.Flags,
			NodePortCIDRs:  c.NodePortCIDRs,
			DetectLocal:    c.DetectLocal,
			ExternalIPs:    c.ExternalIPCIDRs,
			DrainLimit:     c.DrainLimit,
			EndpointChecks: c.EndpointChecks,
			ResetAfter:     c.ResetAfter,
		},
	}
}

// apiServers returns the address of the API server in the client configuration; none if that is a host name.
func apiServers(host string) []netip.Addr {
	if at, err := url.Parse(host); err == nil && at.Host != "" {
		host = at.Hostname()
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return []netip.Addr{addr.Unmap()}
}
