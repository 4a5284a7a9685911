package guest

import (
	"context"

	"github.com/ironlb/ironlb/test/lab/host"
)

// output runs a program of this machine.
func output(ctx context.Context, dir string, argv ...string) (string, error) {
	b, err := host.Output(ctx, host.Native{}, host.Cmd{Argv: argv, Dir: dir, Env: []string{"LC_ALL=C"}})
	return string(b), err
}
