package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironlb/ironlb/ccm"
	"github.com/ironlb/ironlb/ccm/install"
	"github.com/ironlb/ironlb/deploy"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// job is a command that terminates, run by a Job of the chart.
type job struct {
	kubeconfig string
	timeout    time.Duration
	log        *slog.Logger
}

func (j *job) configured(cmd *cobra.Command, limit time.Duration, run func(context.Context, *rest.Config) error) *cobra.Command {
	cmd.Args, cmd.SilenceUsage = cobra.NoArgs, true
	j.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	cmd.Flags().StringVar(&j.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as a Pod does)")
	cmd.Flags().DurationVar(&j.timeout, "timeout", limit, "how long it may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if j.timeout <= 0 {
			return fmt.Errorf("--timeout is %v: it must be more than 0, such as %v", j.timeout, limit)
		}
		config, err := clientcmd.BuildConfigFromFlags("", j.kubeconfig)
		if err != nil {
			return fmt.Errorf("find the API server (give --kubeconfig outside of a Pod): %w", err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), j.timeout)
		defer cancel()
		return run(ctx, config)
	}
	return cmd
}

// releaseCommand is for an uninstall.
func releaseCommand() *cobra.Command {
	var j job
	r := install.Release{}
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Release all Services, when IronLB is uninstalled",
		Long: `Release all Services: remove IronLB's addresses, conditions, annotations and finalizers, so that none is stuck when it is deleted. Then delete
the VirtualIPs and SpeakerStatuses. Pools and advertisements stay.

It waits until no ironlb-ccm holds the leader's Lease: delete the Deployment first.`,
	}
	cmd.Flags().StringVar(&r.LeaseNamespace, "lease-namespace", v1alpha1.Namespace, "namespace of the leader's Lease and of the DaemonSet")
	cmd.Flags().StringVar(&r.LeaseName, "lease-name", ccm.Name, "name of the leader's Lease")
	cmd.Flags().StringVar(&r.DaemonSet, "wait-for-daemonset", "", "also wait until this DaemonSet, which cleans the nodes, is ready on all of them")
	return j.configured(cmd, 4*time.Minute, func(ctx context.Context, config *rest.Config) error {
		r.Log = j.log
		return r.Run(ctx, config)
	})
}

// crdsCommand is for an upgrade: Helm installs CRDs and never updates them.
func crdsCommand() *cobra.Command {
	var j job
	cmd := &cobra.Command{
		Use:   "crds",
		Short: "Apply the CustomResourceDefinitions of this version",
	}
	return j.configured(cmd, time.Minute, func(ctx context.Context, config *rest.Config) error {
		crds, err := deploy.CRDs()
		if err != nil {
			return err
		}
		return install.CRDs(ctx, config, j.log, crds)
	})
}
