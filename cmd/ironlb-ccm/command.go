package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/names"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/ironlb/ironlb/ccm"
	"github.com/ironlb/ironlb/cmd/internal/version"
)

const long = `ironlb-ccm assigns addresses of IPAddressPools to Services of type LoadBalancer, and decides for each address which
nodes may announce it and in which order. The speakers on the nodes carry out the decision (VirtualIP objects).

In a Pod it needs no flag. Run two replicas: they elect a leader by a Lease. Outside a Pod give --kubeconfig.`

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
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		settings.AwaitCertificate(opts)
		return run(cmd, args)
	}
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
