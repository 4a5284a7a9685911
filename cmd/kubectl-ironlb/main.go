// Command kubectl-ironlb is a plugin of kubectl: it shows which node answers for which address and why, and which BGP
// sessions are up, and moves addresses on request.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const long = `kubectl ironlb shows the owner of each address of IronLB and why, the BGP sessions and why some are down, and moves
addresses between nodes on request.

It reads and writes objects of the group ironlb.io as the user of the kubeconfig; no component of IronLB needs to be reachable.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd := command(connect, time.Now)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "error: %s\n", printable(err.Error()))
		stop()
		os.Exit(1)
	}
}

// command returns the program. dial is called once the flags have been read.
func command(dial func(access) (client.Client, error), now func() time.Time) *cobra.Command {
	t := &tool{dial: dial, now: now}
	root := &cobra.Command{
		Use:          "kubectl-ironlb",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ironlb"},
		Short:        "Show address owners and BGP sessions, and move addresses on request",
		Long:         long,
		Version:      version.String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			t.out = cmd.OutOrStdout()
			t.client, err = t.dial(t.access)
			return err
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	flags := root.PersistentFlags()
	flags.StringVar(&t.access.kubeconfig, "kubeconfig", "", "The kubeconfig file. Default: KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.access.context, "context", "", "The context of the kubeconfig. Default: the current one.")
	root.AddCommand(t.statusCommand(), t.rebalanceCommand(), versionCommand())
	return root
}

// versionCommand needs no cluster, so it does not connect to one.
func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version and the commit of this program",
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", cmd.Root().DisplayName(), version.String())
			return err
		},
	}
}

// connect returns a client of IronLB's kinds.
func connect(a access) (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("registering the kinds of %s: %w", v1alpha1.GroupVersion, err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"IPAddressPool", "VirtualIP", "BGPAdvertisement"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	speakers := v1alpha1.GroupVersion.WithResource("speakerstatuses")
	mapper.AddSpecific(v1alpha1.GroupVersion.WithKind("SpeakerStatus"), speakers, v1alpha1.GroupVersion.WithResource("speakerstatus"), meta.RESTScopeRoot)
	cl, err := client.New(config, client.Options{Scheme: sch, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("preparing the client: %w", err)
	}
	return cl, nil
}
