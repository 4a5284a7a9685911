package routes_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// No log shows a password, whatever is logged.
func TestSecretsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		log := slog.New(h)
		log.Info("it", "secret", view.Secret("s3cret"), "peer", routes.Peer{Password: "s3cret"}, "of", view.BGPPeer{Password: "s3cret"}, "at", &routes.Peer{Password: "s3cret"})
		log.Info("none", "secret", view.Secret(""))
	}
	if text := out.String(); strings.Contains(text, "s3cret") || strings.Count(text, "***") < 8 || !strings.Contains(text, `secret=""`) {
		t.Errorf("the log is\n%s", text)
	}
}
