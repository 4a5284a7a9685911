// Command upstream runs Kubernetes' own end-to-end tests of Services and load balancers against IronLB, installed from
// its chart and images on nodes with real kubelets.
//
//	go run ./test/e2e/upstream [-configurations a,b] [-specs REGEXP] [-out FOLDER] [-subset]
//
// Each configuration has its own cluster. The tests run on a machine behind the router, outside the subnet of the
// nodes. A spec that fails, is skipped, or did not run fails the command. Inapplicable specs are listed in skips.yaml
// with a reason each and are not run. docs/development/upstream-tests.md has the results.
package main
