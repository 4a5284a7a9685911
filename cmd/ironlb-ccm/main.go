// Command ironlb-ccm is IronLB's cloud-controller-manager: it assigns addresses to Services of type LoadBalancer and
// decides which nodes announce them.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // request metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build metric
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/ironlb/ironlb/ccm"
	"github.com/ironlb/ironlb/cmd/internal/version"
)

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
