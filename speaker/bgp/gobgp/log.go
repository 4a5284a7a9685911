package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	golog "github.com/osrg/gobgp/v3/pkg/log"
)

// logger is GoBGP's. What GoBGP says of a session only there, the sessions hear; the rest is for whoever looks for a fault in GoBGP.
// No field that GoBGP logs has a password in it.
type logger struct {
	log      *slog.Logger
	sessions *sessions
}

// GetLevel implements GoBGP's Logger. Only at this level it says why a connection failed.
func (l *logger) GetLevel() golog.LogLevel { return golog.DebugLevel }

// SetLevel implements GoBGP's Logger.
func (l *logger) SetLevel(golog.LogLevel) {}

// Panic implements GoBGP's Logger. GoBGP goes on after it as well as it can; a crash would end every session.
func (l *logger) Panic(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Fatal implements GoBGP's Logger, and does not end the process either.
func (l *logger) Fatal(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Error implements GoBGP's Logger.
func (l *logger) Error(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Warn implements GoBGP's Logger. What GoBGP warns of is what a peer does, again and again; the sessions say it once.
func (l *logger) Warn(msg string, f golog.Fields) { l.hear(slog.LevelDebug, msg, f) }

// Info implements GoBGP's Logger.
func (l *logger) Info(msg string, f golog.Fields) { l.hear(slog.LevelDebug, msg, f) }

// Debug implements GoBGP's Logger. There is a line for each UPDATE and more, so most are dropped at once.
func (l *logger) Debug(msg string, f golog.Fields) { l.sessions.hear(msg, f) }

func (l *logger) hear(level slog.Level, msg string, f golog.Fields) {
	l.sessions.hear(msg, f)
	l.write(level, msg, f)
}

func (l *logger) write(level slog.Level, msg string, f golog.Fields) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, len(f)+1)
	for _, k := range slices.Sorted(maps.Keys(f)) {
		attrs = append(attrs, slog.String(k, fmt.Sprint(f[k])))
	}
	l.log.LogAttrs(ctx, level, "GoBGP: "+msg, attrs...)
}
