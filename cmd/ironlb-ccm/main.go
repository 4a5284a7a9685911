// Command ironlb-ccm is IronLB's cloud-controller-manager: it assigns addresses to Services of type LoadBalancer and
// decides which nodes announce them.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // request metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build metric
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/ironlb/ironlb/ccm"
	"github.com/ironlb/ironlb/cmd/internal/version"
)

const long = `ironlb-ccm assigns addresses of IPAddressPools to Services of type LoadBalancer, and decides for each address which
nodes may announce it and in which order. The speakers on the nodes carry out the decision (VirtualIP objects).

In a Pod it needs no flag. Run two replicas: they elect a leader by a Lease. Outside a Pod give --kubeconfig.`

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // bursts create garbage, and the live heap is small: process memory costs more than the collector's CPU time
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	shutdown := func() {}
	settings := ccm.DefaultSettings()
	cmd, err := command(ctx, &settings, func(c *config.CompletedConfig) cloudprovider.Interface {
		cloud := newCloud(c, settings)
		if settings.ProbeAddress != "" {
			if err := cloud.ServeProbes(ctx, settings.ProbeAddress); err != nil {
				fatal(err)
			}
		}
		shutdown = cloud.Shutdown
		return cloud
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "ironlb-ccm: %v\n", err)
		os.Exit(1)
	}
	code := cli.Run(cmd)
	shutdown()
	klog.Flush()
	os.Exit(code)
}

// command is cloud-provider's command with IronLB's defaults, controllers and help.
func command(ctx context.Context, settings *ccm.Settings, cloud app.InitCloudFunc) (*cobra.Command, error) {
	opts, err := ccm.Options()
	if err != nil {
		return nil, err
	}
	var own cliflag.NamedFlagSets
	settings.Flags(&own)
	cmd := app.NewCloudControllerManagerCommand(
		opts, cloud, ccm.Controllers(), names.CCMControllerAliases(), own, ctx.Done())
	cmd.Use, cmd.Long = ccm.Name, long
	cmd.AddCommand(releaseCommand(), crdsCommand())
	printsVersion(cmd)
	for _, name := range ccm.HiddenFlags() {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			return nil, fmt.Errorf("hiding a flag in the help: %w", err)
		}
	}
	if help := cmd.Flags().Lookup("help"); help != nil {
		help.Usage = "help for " + ccm.Name
	}
	show := cmd.HelpFunc()
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out, text := cmd.OutOrStdout(), &bytes.Buffer{}
		cmd.SetOut(text)
		show(cmd, args)
		cmd.SetOut(out)
		out.Write(emptySection.ReplaceAll(text.Bytes(), nil))
	})
	return cmd, nil
}

// printsVersion makes --version print this program's version and commit instead of those of Kubernetes' libraries.
func printsVersion(cmd *cobra.Command) {
	flag, run := cmd.Flags().Lookup("version"), cmd.RunE
	flag.Usage = "print the version and the commit, and quit"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if flag.Changed && flag.Value.String() != "false" {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", ccm.Name, version.String())
			return err
		}
		return run(cmd, args)
	}
}

// emptySection matches the heading of flags that are all hidden.
var emptySection = regexp.MustCompile(`(?m)^[A-Z].* flags:\n\n\n+`)

// newCloud is called when the flags have been read and logging is set up.
func newCloud(c *config.CompletedConfig, settings ccm.Settings) *ccm.Cloud {
	ctrllog.SetLogger(klog.Background())
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	if name := c.ComponentConfig.KubeCloudShared.CloudProvider.Name; name != ccm.ProviderName {
		fatal(fmt.Errorf("--cloud-provider is %q: omit it, or set it to %s", name, ccm.ProviderName))
	}
	log.Info("start", "version", version.String())
	cloud, err := ccm.New(c, settings, log, fatal)
	if err != nil {
		fatal(err)
	}
	return cloud
}

// fatal ends the process, so that the other replica takes over.
func fatal(err error) {
	klog.ErrorS(err, "ending")
	klog.FlushAndExit(klog.ExitFlushTimeout, 1)
}
