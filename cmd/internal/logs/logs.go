// Package logs has the logging flags of the programs on a node.
package logs

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// Options are the flags.
type Options struct{ format, level string }

// AddFlags adds --log-format and --log-level.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.format, "log-format", "text", "text or json")
	flags.StringVar(&o.level, "log-level", "info", "debug, info, warn or error: the least severe level that is logged")
}

// Flags are the flags of a child with the same logging.
func (o Options) Flags() []string { return []string{"--log-format", o.format, "--log-level", o.level} }

// Logger returns the logger, or an error that names the invalid flag.
func (o Options) Logger(w io.Writer) (*slog.Logger, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, ok := levels[o.level]
	if !ok {
		return nil, fmt.Errorf("--log-level is %q: it must be debug, info, warn or error", o.level)
	}
	switch options := (&slog.HandlerOptions{Level: level}); o.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format is %q: it must be text or json", o.format)
}
