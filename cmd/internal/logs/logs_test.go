package logs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parse(t *testing.T, args ...string) (o Options) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestLevels(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "INFO WARN ERROR",
		"--log-level=debug":                    "DEBUG INFO WARN ERROR",
		"--log-level=warn":                     "WARN ERROR",
		"--log-level=error --log-format=json":  "ERROR",
		"--log-level=info --log-format=json":   "INFO WARN ERROR",
		"--log-level=debug --log-format=text ": "DEBUG INFO WARN ERROR",
	} {
		o := parse(t, strings.Fields(args)...)
		again := parse(t, o.Flags()...)
		if again != o {
			t.Errorf("%s: a child has %+v", args, again)
		}
		var out bytes.Buffer
		log, err := o.Logger(&out)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		log.Debug("DEBUG")
		log.Info("INFO")
		log.Warn("WARN")
		log.Error("ERROR")
		var got []string
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "{") != strings.Contains(args, "json") {
				t.Errorf("%s: wrong format: %s", args, line)
			}
			for _, level := range []string{"DEBUG", "INFO", "WARN", "ERROR"} {
				if strings.Contains(line, "msg="+level) || strings.Contains(line, `"msg":"`+level) {
					got = append(got, level)
				}
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: logs %s, want %s", args, got, want)
		}
	}
}

func TestWrong(t *testing.T) {
	for arg, want := range map[string]string{
		"--log-level=loud": `--log-level is "loud": it must be debug, info, warn or error`,
		"--log-level=":     `--log-level is ""`,
		"--log-format=xml": `--log-format is "xml": it must be text or json`,
	} {
		if _, err := parse(t, arg).Logger(nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}
