package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
)

// watchEvery is how often --watch reads the objects.
const watchEvery = 2 * time.Second

// outputFlags adds the flags of a command that shows a diagnosis.
func (t *tool) outputFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.output, "output", "o", "", "Output format: json, yaml or wide.")
	cmd.Flags().BoolVarP(&t.watch, "watch", "w", false, "Show it again after each change, until Ctrl-C.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml", "wide"}, cobra.ShellCompDirectiveNoFileComp))
}

// view makes of the objects a value for json and yaml, its worst state, and its text.
type view func(*diagnose.Cluster) (value any, worst diagnose.State, text func(*bytes.Buffer), err error)

// show reads the objects and prints the view, with --watch after each change. Ages alone are no change: compared is the
// view at the time of the first.
func (t *tool) show(ctx context.Context, of view) error {
	var before []byte
	first, last := t.now(), diagnose.Unknown
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		c, err := t.read(ctx)
		var compared []byte
		var worst diagnose.State
		if err == nil {
			compared, worst, err = t.render(c, of, first)
		}
		switch {
		case err != nil && ctx.Err() != nil && before != nil: // Ctrl-C
			return outcome(last)
		case err != nil && before == nil:
			return err
		case err != nil: // --watch goes on
			compared, worst = []byte("error: "+printable(err.Error())+"\n"), diagnose.Unknown
		}
		last = worst
		if !bytes.Equal(compared, before) {
			out := compared
			if err == nil && t.watch {
				if out, _, err = t.render(c, of, t.now()); err != nil {
					return err
				}
			}
			if f, is := t.out.(*os.File); is && t.watch && term.IsTerminal(int(f.Fd())) {
				fmt.Fprint(f, "\x1b[H\x1b[2J")
			}
			if _, err := t.out.Write(out); err != nil {
				return fmt.Errorf("writing the output: %w", err)
			}
			before = compared
		}
		if !t.watch {
			return outcome(worst)
		}
		select {
		case <-ctx.Done():
			return outcome(worst)
		case <-tick.C:
		}
	}
}

// render returns the output of a view at a time, and its worst state.
func (t *tool) render(c *diagnose.Cluster, of view, at time.Time) ([]byte, diagnose.State, error) {
	defer func(now func() time.Time) { t.now = now }(t.now)
	c.Now, t.now = at, func() time.Time { return at }
	value, worst, text, err := of(c)
	if err != nil {
		return nil, "", err
	}
	if t.output == "" || t.output == "wide" {
		var out bytes.Buffer
		text(&out)
		return out.Bytes(), worst, nil
	}
	out, err := encode(t.output, value, "json, yaml or wide")
	return out, worst, err
}

// encode returns a value as json or yaml. The formats are those of the command.
func encode(format string, value any, formats string) (out []byte, err error) {
	switch format {
	case "json":
		if out, err = json.Marshal(value); err == nil {
			out = append(out, '\n')
		}
	case "yaml":
		out, err = yaml.Marshal(value)
	default:
		return nil, fmt.Errorf("-o %s: write %s", format, formats)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the output: %w", err)
	}
	return out, nil
}

// ago returns the age in kubectl's notation.
func (t *tool) ago(at *metav1.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(t.now().Sub(at.Time))
}

func orDash(s string) string { return cmp.Or(s, "-") }
