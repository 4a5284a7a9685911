// Command kubectl-ironlb is a plugin of kubectl: it shows what works and what does not, explains a Service step by step,
// and moves addresses on request.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const long = `kubectl ironlb shows what works and what does not, explains each step of the way from a Service to the network, and
moves addresses between nodes on request.

It reads and writes objects of the API as the user of the kubeconfig; no component of IronLB needs to be reachable.

Exit code of status, explain, doctor, pools, nodes, bgp, validate, import and connectivity test: 0 if all is well, 1 if
there are problems, 2 if an object could not be read. Other commands: 0, or 2 after an error.`

// Exit codes.
const (
	exitProblems = 1
	exitError    = 2
)

// errProblems is returned after the problems have been printed.
var errProblems = errors.New("there are problems")

// errUnread is returned after a diagnosis that lacks objects has been printed.
var errUnread = errors.New("not all objects could be read")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	klog.SetLogger(logr.Discard()) // every error is returned; client-go also logs that a stopped command has no more output
	context.AfterFunc(ctx, stop)   // a second Ctrl-C ends the program at once
	code := exitCode(os.Stderr, command(connect, time.Now).ExecuteContext(ctx))
	stop()
	os.Exit(code)
}

// exitCode writes an error that has not been printed yet, and returns the exit code.
func exitCode(w io.Writer, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblems):
		return exitProblems
	case !errors.Is(err, errUnread) && !errors.Is(err, context.Canceled): // Ctrl-C needs no explanation
		fmt.Fprintf(w, "error: %s\n", printable(err.Error()))
	}
	return exitError
}

// tool is the shared state of the commands.
type tool struct {
	flags  *genericclioptions.ConfigFlags
	dial   func(*genericclioptions.ConfigFlags) (client.Client, error)
	now    func() time.Time
	client client.Client
	pods   podClient // of sysdump
	out    io.Writer

	output string // -o
	system string // namespace of IronLB
	watch  bool
}

// command returns the program. dial is called once the flags have been read.
func command(dial func(*genericclioptions.ConfigFlags) (client.Client, error), now func() time.Time) *cobra.Command {
	t := &tool{dial: dial, now: now, flags: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:          "kubectl-ironlb",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ironlb"},
		Short:        "Show and explain what IronLB does, and move addresses on request",
		Long:         long,
		Version:      version.String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			t.out = cmd.OutOrStdout()
			return nil
		},
	}
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	flags := root.PersistentFlags()
	t.flags.AddFlags(flags)
	flags.StringVar(&t.system, "ironlb-namespace", v1alpha1.Namespace, "The namespace in which IronLB is installed.")
	root.AddCommand(t.statusCommand(), t.explainCommand(), t.doctorCommand(), t.tableCommand("pools", "Show the address pools and their problems", []string{"Cluster", "IPAddressPool"}, (*tables).pools),
		t.tableCommand("nodes", "Show the nodes and their problems", []string{"Cluster", "Node"}, (*tables).nodes),
		t.tableCommand("bgp", "Show the BGP sessions and their problems", []string{"Cluster", "BGP session", "BGPPeer", "BGPAdvertisement"}, (*tables).sessions),
		t.rebalanceCommand(), t.reallocateCommand(), t.drainCommand(), t.validateCommand(), t.sysdumpCommand(), t.connectivityCommand(), t.importCommand(), t.uiCommand(), t.versionCommand())
	for _, cmd := range root.Commands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return root
}

// connected returns the function of a command that needs a cluster.
func (t *tool) connected(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if t.client, err = t.dial(t.flags); err != nil {
			return err
		}
		return run(cmd.Context(), args)
	}
}

// namespace is that of -n, or of the context of the kubeconfig.
func (t *tool) namespace() (string, error) {
	if n := t.flags.Namespace; n != nil && *n != "" {
		return *n, nil
	}
	name, _, err := t.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return name, nil
}

// outcome returns the error for the worst state.
func outcome(worst diagnose.State) error {
	switch worst {
	case diagnose.Problem:
		return errProblems
	case diagnose.Unknown:
		return errUnread
	}
	return nil
}

// colour marks a state on a terminal.
func (t *tool) colour(s diagnose.State, text string) string {
	code := map[diagnose.State]string{diagnose.OK: "32", diagnose.Warning: "33", diagnose.Unknown: "33", diagnose.Problem: "31"}[s]
	if f, is := t.out.(*os.File); code == "" || !is || os.Getenv("NO_COLOR") != "" || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
