package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	golog "github.com/osrg/gobgp/v3/pkg/log"
)

// logger is the logger of GoBGP. Session events that GoBGP only logs are passed to session; the rest is for debugging
// GoBGP. No field that GoBGP logs contains a password.
type logger struct {
	log     *slog.Logger
	session *session
}

// GetLevel implements GoBGP's Logger. GoBGP logs why a connection failed only at this level.
func (l *logger) GetLevel() golog.LogLevel { return golog.DebugLevel }

// SetLevel implements GoBGP's Logger.
func (l *logger) SetLevel(golog.LogLevel) {}

// Panic implements GoBGP's Logger. GoBGP continues after it as well as it can; a crash would end every session.
func (l *logger) Panic(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Fatal implements GoBGP's Logger, and does not end the process either.
func (l *logger) Fatal(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Error implements GoBGP's Logger.
func (l *logger) Error(msg string, f golog.Fields) { l.write(slog.LevelError, msg, f) }

// Warn implements GoBGP's Logger. GoBGP warns repeatedly about the same behaviour of a peer; the session reports it
// once.
func (l *logger) Warn(msg string, f golog.Fields) { l.handle(slog.LevelDebug, msg, f) }

// Info implements GoBGP's Logger.
func (l *logger) Info(msg string, f golog.Fields) { l.handle(slog.LevelDebug, msg, f) }

// Debug implements GoBGP's Logger. There is at least one line per UPDATE, so most are dropped at once.
func (l *logger) Debug(msg string, f golog.Fields) { l.session.handleLog(msg, f) }

func (l *logger) handle(level slog.Level, msg string, f golog.Fields) {
	l.session.handleLog(msg, f)
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
