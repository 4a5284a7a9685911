package bfd

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more tests in parallel than there are cores, unless the flag is set: they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}
